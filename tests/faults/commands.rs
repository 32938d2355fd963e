//! Command lines that cannot be obeyed, and the exit codes they get.

use std::fs;

use super::support::{Server, data_dir, mainstay};

#[test]
fn a_second_server_on_the_same_data_is_refused_naming_directory_and_process() {
    let mut server = Server::start();
    let data = server.data().to_str().expect("UTF-8").to_owned();
    let output = mainstay(&["server", "--listen", "127.0.0.1:0", "--data-dir", &data]);
    assert_eq!(output.code, 1, "{output}");
    assert!(output.stderr.contains(&data), "{output}");
    assert!(output.stderr.contains(&format!("process {}", server.pid())), "{output}");
    server.assert_well();
}

#[test]
fn a_port_in_use_is_refused_naming_flag_and_address() {
    let server = Server::start();
    let dir = data_dir();
    let address = server.address().to_string();
    let output = mainstay(&["server", "--listen", &address, "--data-dir", dir.path().to_str().expect("UTF-8")]);
    assert_eq!(output.code, 1, "{output}");
    let expected = format!("mainstay: --listen: listen on {address}: Address already in use");
    assert!(output.stderr.contains(&expected), "{output}");
}

#[test]
fn a_data_directory_that_cannot_be_written_is_refused_by_name() {
    let dir = data_dir();
    let file = dir.path().join("file");
    fs::write(&file, "").expect("write");
    let below = file.join("data");
    let below = below.to_str().expect("UTF-8");
    let output = mainstay(&["server", "--listen", "127.0.0.1:0", "--data-dir", below]);
    assert!(matches!(output.code, 1 | 2), "{output}");
    assert!(output.stderr.contains("--data-dir") && output.stderr.contains(below), "{output}");
}

#[test]
fn wrong_usage_ends_with_64_and_says_what_is_wrong() {
    for (args, word) in [
        (&["server", "--nonsense"][..], "--nonsense"),
        (&["fly"], "fly"),
        (&[], "Usage"),
        (&["server", "--listen", "here"], "--listen"),
        (&["server", "--max-writes", "0"], "--max-writes"),
        (&["server", "--max-reads=-1"], "--max-reads"),
        (&["server", "--max-connections", "99999999999999999999"], "--max-connections"),
        (&["server", "--request-timeout", "0"], "--request-timeout"),
        (&["server", "--idle-timeout", "18446744073709551615"], "--idle-timeout"),
        (&["server", "--event-ttl", "soon"], "--event-ttl"),
        (&["backup"], "<FILE>"),
        (&["restore"], "<FILE>"),
    ] {
        let output = mainstay(args);
        assert_eq!(output.code, 64, "{output}");
        assert!(output.stderr.contains(word), "no {word:?} in {output}");
    }
}

#[test]
fn help_and_version_end_well() {
    assert!(mainstay(&["--version"]).ok().starts_with("mainstay "));
    let help = mainstay(&["server", "--help"]).ok();
    for flag in ["--data-dir", "--listen", "--history-events", "--history-seconds", "--idle-timeout", "--stall-timeout"]
    {
        assert!(help.contains(flag), "{flag} is not in the help");
    }
}

#[test]
fn settings_that_make_no_sense_are_refused_by_name() {
    let dir = data_dir();
    let data = dir.path().to_str().expect("UTF-8");
    for (flag, value) in [("--store", "paper"), ("--log", "a=b=c")] {
        let output = mainstay(&["server", "--listen", "127.0.0.1:0", "--data-dir", data, flag, value]);
        assert_eq!(output.code, 1, "{output}");
        assert!(output.stderr.contains(flag) && output.stderr.contains(value), "{output}");
    }
}

#[test]
fn a_config_file_with_mistakes_is_refused_by_file_and_key() {
    let dir = data_dir();
    let file = dir.path().join("config.toml");
    let path = file.to_str().expect("UTF-8");
    for (content, code, word) in [
        ("lisen = \"127.0.0.1:0\"", 1, "lisen"),
        ("listen = { a = 1 }", 1, "listen"),
        ("listen = ", 1, "config.toml"),
        ("listen = \"here\"", 64, "--listen"),
        ("max-writes = 0", 64, "--max-writes"),
    ] {
        fs::write(&file, content).expect("write");
        let output = mainstay(&["server", "--config", path]);
        assert_eq!(output.code, code, "{content}: {output}");
        assert!(output.stderr.contains(word), "no {word:?} in {output}");
    }
    let output = mainstay(&["server", "--config", "/nowhere/config.toml"]);
    assert_eq!(output.code, 2, "{output}");
    assert!(output.stderr.contains("/nowhere/config.toml"), "{output}");
}
