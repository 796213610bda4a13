"""Steps over a project, recorded from its tests and done again inside sandboxes; the texts of most of these modules run there."""
