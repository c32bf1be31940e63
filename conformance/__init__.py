"""The conformance suite: does a host array that a producer hands over arrive right, rule by rule, in each framework?"""
