//! One task per pod: look, decide, act, report.
