//! The hierarchical scheduler.
