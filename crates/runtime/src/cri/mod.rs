//! A client of any runtime that speaks CRI v1.
