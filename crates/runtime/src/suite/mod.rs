//! What every implementation of [`crate::Runtime`] must do, as tests to be run against each.
