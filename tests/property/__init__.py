"""Laws of codecs and planners, searched for counterexamples by hypothesis."""
