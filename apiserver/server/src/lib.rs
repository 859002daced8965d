//! HTTP handlers, discovery, registries and watches of the bundled API server.
