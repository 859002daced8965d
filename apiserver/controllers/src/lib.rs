//! Controllers of the bundled API server, over all logical clusters at once.
