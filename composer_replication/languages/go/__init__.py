"""Go: modules whose tests run with `go test`."""
