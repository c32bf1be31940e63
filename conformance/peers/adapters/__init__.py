"""One adapter for each peer: what stands in for what while its tests are imported and run.

An adapter may have `while_importing`, modules that take the place of others while the tests are imported; `patch`,
what is replaced for the whole run; and `after_importing`, what is replaced in a module of tests. Its fixtures are there
in any case.
"""
