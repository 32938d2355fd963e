//! Reading what containers wrote.
