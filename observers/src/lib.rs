//! One observer of object counts per workspace.
