//! Entries of the kernel's memory of connections, read and deleted over netlink.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
};

use crate::nft::{
    IPV4,
    socket::Session,
    wire::{self, DUMP, Header, NESTED, REQUEST, attribute},
};

const SUBSYSTEM: u16 = 1 << 8;
const GET: u16 = SUBSYSTEM + 1;
const DELETE: u16 = SUBSYSTEM + 2;

// Attributes of an entry.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;

const UDP: u8 = 17;
const BY_PROTOCOL: u32 = 1 << 3;

/// One that the kernel remembers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Where the client sends to.
    pub to: SocketAddrV4,
    /// Who answers. Somebody else if the flow is diverted.
    pub answered_by: SocketAddrV4,
    /// What names the entry.
    original: Vec<u8>,
    id: Option<Vec<u8>>,
    zone: Option<Vec<u8>>,
}

/// All UDP flows.
pub fn udp(session: &Session) -> io::Result<Vec<Flow>> {
    // Older kernels do not know the filter, and list everything or refuse.
    match session.list(&request(true), flow) {
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => session.list(&request(false), flow),
        listed => listed,
    }
}

fn request(filtered: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let header = Header { kind: GET, flags: REQUEST | DUMP, sequence: 0, family: IPV4, resource: 0 };
    wire::write(&mut bytes, &header, |a| {
        if filtered {
            a.nest(ORIGINAL, |a| a.nest(2, |a| a.bytes(1, &[UDP])));
            a.nest(FILTER, |a| a.bytes(1, &BY_PROTOCOL.to_ne_bytes()));
        }
    });
    bytes
}

fn flow(message: wire::Message<'_>, found: &mut Vec<Flow>) {
    let content = message.attributes();
    let read = || {
        let (original, reply) = (attribute(content, ORIGINAL)?, attribute(content, REPLY)?);
        let udp = attribute(attribute(original, 2)?, 1)? == [UDP];
        udp.then_some(Flow {
            to: end(original, 2, 3)?,
            answered_by: end(reply, 1, 2)?,
            original: original.to_vec(),
            id: attribute(content, ID).map(<[u8]>::to_vec),
            zone: attribute(content, ZONE).map(<[u8]>::to_vec),
        })
    };
    found.extend(read());
}

fn end(tuple: &[u8], address: u16, port: u16) -> Option<SocketAddrV4> {
    let address: [u8; 4] = attribute(attribute(tuple, 1)?, address)?.try_into().ok()?;
    let port: [u8; 2] = attribute(attribute(tuple, 2)?, port)?.try_into().ok()?;
    Some(SocketAddrV4::new(Ipv4Addr::from(address), u16::from_be_bytes(port)))
}

/// The next packet of these is judged as a first one. Those that ended meanwhile are no error.
pub fn delete(session: &Session, flows: &[Flow]) -> io::Result<()> {
    if flows.is_empty() {
        return Ok(());
    }
    session.send_all(&deletions(flows), io::ErrorKind::NotFound)
}

fn deletions(flows: &[Flow]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for flow in flows {
        let header = Header { kind: DELETE, flags: REQUEST, sequence: 0, family: IPV4, resource: 0 };
        wire::write(&mut bytes, &header, |a| {
            a.bytes(ORIGINAL | NESTED, &flow.original);
            if let Some(id) = &flow.id {
                a.bytes(ID, id);
            }
            if let Some(zone) = &flow.zone {
                a.bytes(ZONE, zone);
            }
        });
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::tests::assert_golden;

    #[test]
    fn the_bytes_of_requests_are_the_golden_ones() {
        let flow = Flow {
            to: "10.96.0.1:53".parse().unwrap(),
            answered_by: "10.244.0.2:53".parse().unwrap(),
            original: vec![8, 0, 1, 0, 10, 96, 0, 1],
            id: Some(vec![1, 2, 3, 4]),
            zone: Some(vec![0, 7]),
        };
        let plain = Flow { id: None, zone: None, ..flow.clone() };
        let requests = [
            ("dump UDP", request(true)),
            ("dump without filter", request(false)),
            ("delete", deletions(&[flow, plain])),
        ];
        assert_golden("conntrack.txt", include_str!("../nft/tests/conntrack.txt"), &requests);
    }
}
