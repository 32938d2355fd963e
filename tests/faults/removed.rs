//! A data directory that is removed while the server runs.

use std::fs;

use super::support::{
    Server, data_dir,
    objects::{CONFIG_MAPS, config_map},
};

#[test]
fn a_removed_data_directory_is_noticed_and_nothing_more_is_acknowledged() {
    let dir = data_dir();
    let data = dir.path().join("data");
    let server = Server::start_in(&data, &[]);
    let mut client = server.client();
    client.post(CONFIG_MAPS, &config_map("before")).granted();
    assert_eq!(client.get("/readyz").code, 200);
    fs::remove_dir_all(&data).expect("remove the data directory");
    let store = data.join("store");
    let store = store.to_str().expect("UTF-8");
    let why = format!("the store's files at {store} were removed");
    let status = client.post(CONFIG_MAPS, &config_map("after")).refused_saying(500, "InternalError", &why);
    assert!(status["message"].as_str().is_some_and(|message| message.contains("restart")), "{status}");
    client.delete(&format!("{CONFIG_MAPS}/before")).refused_saying(500, "InternalError", &why);
    let ready = client.get("/readyz?verbose");
    assert_eq!(ready.code, 500, "{}", ready.text());
    assert!(ready.text().contains("[-]store failed") && ready.text().contains(&why), "{}", ready.text());
    // Alive, so that what is in memory can be read and saved.
    assert_eq!(client.get("/livez").code, 200);
    client.get(&format!("{CONFIG_MAPS}/before")).granted();
    client.get(&format!("{CONFIG_MAPS}/after")).refused(404, "NotFound");
    assert_eq!(client.get("/backup").code, 200);
}
