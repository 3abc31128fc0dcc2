"""The transport `http`: a row goes out as a request to an HTTP interface of a provider."""
