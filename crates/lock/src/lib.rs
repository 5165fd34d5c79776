//! The lock domain.
