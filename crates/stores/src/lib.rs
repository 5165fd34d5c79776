//! Where locks are kept.
