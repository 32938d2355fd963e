//! What pods refer to: ConfigMaps, Secrets, claims and Services, as the API last told.
