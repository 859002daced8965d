//! Storage keys (kcp.md 1.5).
