//! Connection tracking: sysctls, and stale UDP entries, which are listed and deleted over netlink.
//!
//! NAT is decided for the first packet of a flow and kept in its conntrack entry. UDP has no end that the kernel
//! could see: a client that keeps sending from one port keeps its entry alive, and its datagrams go to the backend in
//! that entry even when the backend is gone. Such entries have to be deleted. TCP entries are left alone: a
//! connection to a pod that is terminating may still end in order.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    path::Path,
    time::Duration,
};

use crate::nft::{
    netlink::{Header, Message, get_bytes, write_message},
    socket::NetfilterSocket,
    uapi::{
        CTA_FILTER, CTA_FILTER_F_CTA_PROTO_NUM, CTA_FILTER_ORIG_FLAGS, CTA_ID, CTA_IP_V4_DST, CTA_IP_V4_SRC,
        CTA_PROTO_DST_PORT, CTA_PROTO_NUM, CTA_PROTO_SRC_PORT, CTA_TUPLE_IP, CTA_TUPLE_ORIG, CTA_TUPLE_PROTO,
        CTA_TUPLE_REPLY, CTA_ZONE, IPCTNL_MSG_CT_DELETE, IPCTNL_MSG_CT_GET, IPPROTO_UDP, NFNL_SUBSYS_CTNETLINK,
        NFPROTO_IPV4, NLA_F_NESTED, NLM_F_DUMP, NLM_F_REQUEST,
    },
};

/// Sysctls of the machine that are left alone unless they are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// `nf_conntrack_max`
    pub max: Option<u32>,
    /// `nf_conntrack_tcp_timeout_established`
    pub tcp_timeout_established: Option<Duration>,
}

impl Settings {
    /// Sets the sysctls. Returns a warning for each that could not be set: outside the initial network namespace the
    /// kernel refuses some of them, and the rest of the agent works all the same.
    pub fn apply(&self) -> Vec<String> {
        self.apply_below(Path::new("/proc/sys/net/netfilter"))
    }

    fn apply_below(&self, directory: &Path) -> Vec<String> {
        let seconds = self.tcp_timeout_established.map(|time| time.as_secs().max(1));
        let wanted = [("nf_conntrack_max", self.max.map(u64::from)), ("nf_conntrack_tcp_timeout_established", seconds)];
        let warnings = wanted.into_iter().filter_map(|(name, value)| {
            let (path, value) = (directory.join(name), value?);
            let error = write_sysctl(&path, value).err()?;
            Some(format!("cannot set {} to {value}: {error}", path.display()))
        });
        warnings.collect()
    }
}

fn write_sysctl(path: &Path, value: u64) -> io::Result<()> {
    if std::fs::read_to_string(path)?.trim() == value.to_string() {
        return Ok(());
    }
    std::fs::write(path, value.to_string())
}

/// A conntrack entry of a UDP flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UdpEntry {
    /// Destination of the original direction: where the client sends to.
    pub original_destination: SocketAddrV4,
    /// Source of the reply direction: who answers. It differs from the above after DNAT.
    pub reply_source: SocketAddrV4,
    // What identifies the entry to the kernel.
    original_tuple: Vec<u8>,
    id: Option<Vec<u8>>,
    zone: Option<Vec<u8>>,
}

pub(crate) fn list_udp_entries(socket: &NetfilterSocket) -> io::Result<Vec<UdpEntry>> {
    // Kernels before 5.8 do not know CTA_FILTER, and list everything or refuse.
    match socket.dump(&dump_request(true), read_entry) {
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => socket.dump(&dump_request(false), read_entry),
        listed => listed,
    }
}

fn header(message: u16, flags: u16) -> Header {
    let message_type = NFNL_SUBSYS_CTNETLINK << 8 | message;
    Header { message_type, flags: NLM_F_REQUEST | flags, sequence: 0, family: NFPROTO_IPV4, resource: 0 }
}

fn dump_request(filtered: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_message(&mut bytes, &header(IPCTNL_MSG_CT_GET, NLM_F_DUMP), |a| {
        if filtered {
            a.nest(CTA_TUPLE_ORIG, |a| a.nest(CTA_TUPLE_PROTO, |a| a.put_bytes(CTA_PROTO_NUM, &[IPPROTO_UDP])));
            a.nest(CTA_FILTER, |a| a.put_bytes(CTA_FILTER_ORIG_FLAGS, &CTA_FILTER_F_CTA_PROTO_NUM.to_ne_bytes()));
        }
    });
    bytes
}

fn read_entry(message: Message<'_>, found: &mut Vec<UdpEntry>) {
    let entry = message.attributes();
    let read = || {
        let (original, reply) = (get_bytes(entry, CTA_TUPLE_ORIG)?, get_bytes(entry, CTA_TUPLE_REPLY)?);
        let is_udp = get_bytes(get_bytes(original, CTA_TUPLE_PROTO)?, CTA_PROTO_NUM)? == [IPPROTO_UDP];
        is_udp.then_some(UdpEntry {
            original_destination: socket_address(original, CTA_IP_V4_DST, CTA_PROTO_DST_PORT)?,
            reply_source: socket_address(reply, CTA_IP_V4_SRC, CTA_PROTO_SRC_PORT)?,
            original_tuple: original.to_vec(),
            id: get_bytes(entry, CTA_ID).map(<[u8]>::to_vec),
            zone: get_bytes(entry, CTA_ZONE).map(<[u8]>::to_vec),
        })
    };
    found.extend(read());
}

fn socket_address(tuple: &[u8], address: u16, port: u16) -> Option<SocketAddrV4> {
    let address: [u8; 4] = get_bytes(get_bytes(tuple, CTA_TUPLE_IP)?, address)?.try_into().ok()?;
    let port: [u8; 2] = get_bytes(get_bytes(tuple, CTA_TUPLE_PROTO)?, port)?.try_into().ok()?;
    Some(SocketAddrV4::new(Ipv4Addr::from(address), u16::from_be_bytes(port)))
}

/// Deletes entries: the next packet of each flow passes the NAT chains again. Entries that ended meanwhile are no
/// error.
pub(crate) fn delete_entries(socket: &NetfilterSocket, entries: &[UdpEntry]) -> io::Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    socket.send_requests(&delete_requests(entries), io::ErrorKind::NotFound)
}

fn delete_requests(entries: &[UdpEntry]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in entries {
        write_message(&mut bytes, &header(IPCTNL_MSG_CT_DELETE, 0), |a| {
            a.put_bytes(CTA_TUPLE_ORIG | NLA_F_NESTED, &entry.original_tuple);
            if let Some(id) = &entry.id {
                a.put_bytes(CTA_ID, id);
            }
            if let Some(zone) = &entry.zone {
                a.put_bytes(CTA_ZONE, zone);
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
    fn sysctls_are_set_only_if_given_and_failures_are_warnings() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Settings::default().apply_below(directory.path()), Vec::<String>::new());
        let both = Settings { max: Some(7), tcp_timeout_established: Some(Duration::from_secs(600)) };
        let warnings = both.apply_below(directory.path());
        assert_eq!(warnings.len(), 2);
        assert!(
            warnings[0].starts_with("cannot set ") && warnings[0].contains("/nf_conntrack_max to 7: "),
            "{warnings:?}"
        );
        let max = directory.path().join("nf_conntrack_max");
        std::fs::write(&max, "5\n").unwrap();
        assert_eq!(both.apply_below(directory.path()).len(), 1);
        assert_eq!(std::fs::read_to_string(max).unwrap(), "7");
    }

    #[test]
    fn the_bytes_of_requests_are_the_golden_ones() {
        let entry = UdpEntry {
            original_destination: "10.96.0.1:53".parse().unwrap(),
            reply_source: "10.244.0.2:53".parse().unwrap(),
            original_tuple: vec![8, 0, 1, 0, 10, 96, 0, 1],
            id: Some(vec![1, 2, 3, 4]),
            zone: Some(vec![0, 7]),
        };
        let plain = UdpEntry { id: None, zone: None, ..entry.clone() };
        let requests = [
            ("dump UDP", dump_request(true)),
            ("dump without filter", dump_request(false)),
            ("delete", delete_requests(&[entry, plain])),
        ];
        assert_golden("conntrack.txt", include_str!("nft/tests/conntrack.txt"), &requests);
    }
}
