//! Renders configuration templates (`minijinja`, Jinja2's language): the same template and inputs give the same bytes.
//!
//! * [`render`](mod@render): a template over inputs; [`check_syntax`]: whether a text is a template at all
//! * `nesting`: how deep a template nests, before anything recursive looks at it
//! * [`version`]: the name of what was rendered
//!
//! Rendering reads no clock, no file and no environment. It is bounded in steps, depth and size of what it writes. What it takes
//! in memory on the way is not ([`render`](mod@render) says why): whoever renders templates of strangers does so in a process of its own.

mod nesting;
pub mod render;
pub mod version;

pub use render::{Input, MAX_OUTPUT, MAX_SOURCE, TemplateError, check_syntax, render, render_inputs};
pub use version::version;
