//! A runtime in memory: containers are records, and tests make them exit.
