//! This machine as a Node of the API.
