"""Java: projects whose tests run with JUnit, compiled by javac alone."""
