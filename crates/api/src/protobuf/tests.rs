use super::*;

fn varint_bytes(mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
    out
}

fn bytes(number: u64, content: &[u8]) -> Vec<u8> {
    [varint_bytes(number << 3 | 2), varint_bytes(content.len() as u64), content.to_vec()].concat()
}

fn number(field: u64, value: i64) -> Vec<u8> {
    [varint_bytes(field << 3), varint_bytes(value as u64)].concat()
}

fn envelope(version: &str, kind: &str, message: &[u8]) -> Vec<u8> {
    let meta = [bytes(1, version.as_bytes()), bytes(2, kind.as_bytes())].concat();
    [MAGIC.to_vec(), bytes(1, &meta), bytes(2, message), bytes(3, b""), bytes(4, b"")].concat()
}

#[test]
fn unset_values_are_left_out_and_zeros_that_were_set_stay() {
    let meta = [bytes(1, b"web"), bytes(2, b""), bytes(3, b""), number(7, 0), bytes(8, b"")].concat();
    let spec = [number(1, 0), number(5, 0), number(7, 0)].concat();
    let body = envelope("apps/v1", "Deployment", &[bytes(1, &meta), bytes(2, &spec), bytes(3, b"")].concat());
    let expected = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web"}, "spec": {"replicas": 0}, "status": {},
    });
    assert_eq!(decode(&body), Ok(expected));
}

#[test]
fn maps_inlined_messages_and_wrapped_values_take_their_json_form() {
    let entry = |key: &str, value: &[u8]| [bytes(1, key.as_bytes()), bytes(2, value)].concat();
    let secret = [bytes(2, &entry("a", b"\x00\xff")), bytes(2, &entry("b", b"x"))].concat();
    let decoded = decode(&envelope("v1", "Secret", &secret)).unwrap();
    assert_eq!(decoded["data"], json!({"a": "AP8=", "b": "eA=="}));

    let volume = [bytes(1, b"v"), bytes(2, &bytes(2, b""))].concat();
    let limits = bytes(1, &entry("cpu", &bytes(1, b"500m")));
    let probe =
        [bytes(1, &bytes(2, &bytes(2, &[number(1, 1), number(2, 0), bytes(3, b"http")].concat()))), number(2, -1)]
            .concat();
    let container = [bytes(1, b"c"), bytes(8, &limits), bytes(10, &probe)].concat();
    let pod = bytes(2, &[bytes(1, &volume), bytes(2, &container)].concat());
    let decoded = decode(&envelope("v1", "Pod", &pod)).unwrap();
    let expected = json!({
        "volumes": [{"name": "v", "emptyDir": {}}],
        "containers": [{
            "name": "c", "resources": {"limits": {"cpu": "500m"}},
            "livenessProbe": {"httpGet": {"port": "http"}, "initialDelaySeconds": -1},
        }],
    });
    assert_eq!(decoded["spec"], expected);
}

#[test]
fn times_have_the_precision_of_their_type() {
    let time = [number(1, 1_700_000_000), number(2, 123_456_789)].concat();
    let lease = [bytes(1, &bytes(8, &time)), bytes(2, &bytes(3, &time))].concat();
    let decoded = decode(&envelope("coordination.k8s.io/v1", "Lease", &lease)).unwrap();
    assert_eq!(decoded["metadata"]["creationTimestamp"], "2023-11-14T22:13:20Z");
    assert_eq!(decoded["spec"]["acquireTime"], "2023-11-14T22:13:20.123456Z");
}

#[test]
fn what_is_no_object_is_refused() {
    assert_eq!(decode(b"{}"), Err(ProtobufError::NoMagic));
    assert_eq!(decode(&envelope("v1", "Wheel", b"")), Err(ProtobufError::UnknownKind));
    let pod = envelope("v1", "Pod", &bytes(1, &bytes(1, b"web")));
    for end in 4..pod.len() {
        let _ = decode(&pod[..end]); // any cut: no panic
    }
    assert_eq!(decode(&envelope("v1", "Pod", &bytes(1, &[0x0a, 9]))), Err(ProtobufError::CutShort));
    assert_eq!(decode(&envelope("v1", "Pod", &number(1, 1))), Err(ProtobufError::WrongType));
    assert_eq!(decode(&envelope("v1", "Pod", &bytes(1, &bytes(1, b"\xff")))), Err(ProtobufError::NotText));
}

#[test]
fn more_messages_than_memory_is_worth_are_refused() {
    let container = bytes(2, &bytes(1, b"")); // six bytes with the name that is always there
    let pod = |count: usize| envelope("v1", "Pod", &bytes(2, &container.repeat(count)));
    assert_eq!(decode(&pod(500_000)), Err(ProtobufError::TooManyItems));
    let decoded = decode(&pod(20_000)).unwrap();
    assert_eq!(decoded["spec"]["containers"].as_array().map(Vec::len), Some(20_000));
}
