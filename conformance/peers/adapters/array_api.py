"""For array-api-tests: nothing is replaced, for the tests are told the namespace by an environment variable."""
