"""JavaScript and TypeScript: tests with node:test, vitest, jest and mocha."""
