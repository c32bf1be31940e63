"""Runs the DLPack tests of other projects on arrays that dlwrap exports; none of their code is here."""
