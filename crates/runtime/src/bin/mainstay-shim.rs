//! The shim alone, for tests: the real one is `mainstay shim`.

fn main() -> std::process::ExitCode {
    mainstay_runtime::builtin::shim::main(std::env::args_os().skip(1))
}
