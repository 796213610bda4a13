"""Detectors of error turns in any agent's transcript.

A finding names the turn whose ACTION was wrong, which is not always the turn where it showed: failing tests blame the last
change of the workspace before them, not the call that ran them.
"""
