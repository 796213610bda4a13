"""Rust: what building and grading tasks know of crates."""
