//! Pods bound to this machine, from the API.
