"""The jars that a Java project requires: read from its build files, and found in repositories of Maven's layout."""
