//! Asks routers by ICMP whether they route to this machine's pods, and pods' machines whether they answer.
//!
//! An echo request to the address of this machine's own bridge, sent by the uplink, goes to the router. A router that has the right route
//! would send it back where it came from, and says so with an ICMP redirect whose gateway is this machine. A redirect to somebody else, or
//! none, is a route that is wrong or missing. Nothing is inferred from the echo itself, which the kernel drops as a martian packet.
//!
//! Needs CAP_NET_RAW. Calls block for as long as their time limit; run them apart from other tasks.

use std::{
    io::{self, Read},
    net::{IpAddr, Ipv4Addr, SocketAddrV4},
    time::{Duration, Instant},
};

use socket2::{Domain, Protocol, Socket, Type};

const ICMP_ECHOREPLY: u8 = 0;
const ICMP_REDIRECT: u8 = 5;
const ICMP_ECHO: u8 = 8;
const IPPROTO_ICMP: u8 = 1;
const ICMP_HEADER: usize = 8;

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Echo {
    target: Ipv4Addr,
    id: u16,
    sequence: u16,
}

/// The gateway that the router names for `target`, which is an address of this machine; nothing within `limit` if it names none.
pub fn ask_for_redirect(uplink: &str, target: Ipv4Addr, limit: Duration) -> io::Result<Option<Ipv4Addr>> {
    let echo = Echo { target, id: fastrand::u16(..), sequence: fastrand::u16(..) };
    exchange(Some(uplink), echo, limit, |packet| parse_redirect(packet, &echo))
}

/// Whether `target` answers an echo request within `limit`.
pub fn answers_echo(target: Ipv4Addr, limit: Duration) -> io::Result<bool> {
    let echo = Echo { target, id: fastrand::u16(..), sequence: fastrand::u16(..) };
    Ok(exchange(None, echo, limit, |packet| is_reply(packet, &echo).then_some(()))?.is_some())
}

/// The interface that has this address.
pub fn interface_with_address(address: IpAddr) -> io::Result<Option<String>> {
    let has_address = |interface: &nix::ifaddrs::InterfaceAddress| {
        let own = interface.address?;
        let own = own.as_sockaddr_in().map(|own| IpAddr::from(own.ip()));
        (own == Some(address)).then(|| interface.interface_name.clone())
    };
    Ok(nix::ifaddrs::getifaddrs()?.find_map(|interface| has_address(&interface)))
}

/// Sends an echo request and reads ICMP packets until one is what is waited for.
fn exchange<T>(
    uplink: Option<&str>,
    echo: Echo,
    limit: Duration,
    mut accept: impl FnMut(&[u8]) -> Option<T>,
) -> io::Result<Option<T>> {
    let mut socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4))?;
    if let Some(uplink) = uplink {
        socket.bind_device(Some(uplink.as_bytes()))?;
    }
    socket.send_to(&encode_echo(&echo), &SocketAddrV4::new(echo.target, 0).into())?;
    let (end, mut packet) = (Instant::now() + limit, [0; 1500]);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        socket.set_read_timeout(Some(left))?;
        match socket.read(&mut packet) {
            Ok(length) => {
                if let Some(accepted) = packet.get(..length).and_then(&mut accept) {
                    return Ok(Some(accepted));
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn encode_echo(echo: &Echo) -> [u8; ICMP_HEADER] {
    let mut packet = [0; ICMP_HEADER];
    packet[0] = ICMP_ECHO;
    packet[4..6].copy_from_slice(&echo.id.to_be_bytes());
    packet[6..8].copy_from_slice(&echo.sequence.to_be_bytes());
    let sum = checksum(&packet);
    packet[2..4].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// RFC 1071.
fn checksum(packet: &[u8]) -> u16 {
    let words = packet.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// An IPv4 packet's ICMP part, and the packet's destination.
fn icmp_of(packet: &[u8]) -> Option<(Ipv4Addr, &[u8])> {
    let length = usize::from(packet.first()? & 0x0f) * 4;
    let is_icmp = packet[0] >> 4 == 4 && length >= 20 && packet.get(9) == Some(&IPPROTO_ICMP);
    let destination: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
    is_icmp.then_some((destination.into(), packet.get(length..)?))
}

fn has_identity(icmp: &[u8], echo: &Echo) -> bool {
    icmp.get(4..6) == Some(&echo.id.to_be_bytes()[..]) && icmp.get(6..8) == Some(&echo.sequence.to_be_bytes()[..])
}

/// The gateway of a redirect that answers this echo request.
fn parse_redirect(packet: &[u8], echo: &Echo) -> Option<Ipv4Addr> {
    let (_, icmp) = icmp_of(packet)?;
    if icmp.first() != Some(&ICMP_REDIRECT) {
        return None;
    }
    let gateway: [u8; 4] = icmp.get(4..8)?.try_into().ok()?;
    let (target, asked) = icmp_of(icmp.get(ICMP_HEADER..)?)?;
    let is_ours = target == echo.target && asked.first() == Some(&ICMP_ECHO) && has_identity(asked, echo);
    is_ours.then(|| gateway.into())
}

fn is_reply(packet: &[u8], echo: &Echo) -> bool {
    icmp_of(packet).is_some_and(|(_, icmp)| icmp.first() == Some(&ICMP_ECHOREPLY) && has_identity(icmp, echo))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ECHO: Echo = Echo { target: Ipv4Addr::new(10, 244, 1, 1), id: 0x1234, sequence: 7 };

    fn ip_packet(destination: Ipv4Addr, content: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 20];
        (packet[0], packet[9]) = (0x45, IPPROTO_ICMP);
        packet[16..20].copy_from_slice(&destination.octets());
        packet.extend_from_slice(content);
        packet
    }

    fn redirect(asked: &Echo, gateway: Ipv4Addr) -> Vec<u8> {
        let mut content = vec![ICMP_REDIRECT, 1, 0, 0];
        content.extend_from_slice(&gateway.octets());
        content.extend(ip_packet(asked.target, &encode_echo(asked)));
        ip_packet(Ipv4Addr::new(10, 0, 0, 2), &content)
    }

    #[test]
    fn a_redirect_is_ours_if_it_carries_our_request() {
        let gateway = Ipv4Addr::new(10, 0, 0, 2);
        assert_eq!(parse_redirect(&redirect(&ECHO, gateway), &ECHO), Some(gateway));
        let others = Echo { id: 0x4321, ..ECHO };
        assert_eq!(parse_redirect(&redirect(&others, gateway), &ECHO), None);
        let elsewhere = Echo { target: Ipv4Addr::new(10, 244, 9, 1), ..ECHO };
        assert_eq!(parse_redirect(&redirect(&elsewhere, gateway), &ECHO), None);
        let whole = redirect(&ECHO, gateway);
        for length in 0..whole.len() {
            assert_eq!(parse_redirect(&whole[..length], &ECHO), None, "{length} bytes of it");
        }
    }

    #[test]
    fn a_reply_is_ours_by_its_numbers() {
        let mut reply = encode_echo(&ECHO).to_vec();
        reply[0] = ICMP_ECHOREPLY;
        assert!(is_reply(&ip_packet(Ipv4Addr::LOCALHOST, &reply), &ECHO));
        assert!(!is_reply(&ip_packet(Ipv4Addr::LOCALHOST, &encode_echo(&ECHO)), &ECHO), "the request itself");
        assert!(!is_reply(&ip_packet(Ipv4Addr::LOCALHOST, &reply), &Echo { sequence: 8, ..ECHO }));
    }

    #[test]
    fn the_checksum_of_a_packet_with_its_checksum_is_zero() {
        assert_eq!(checksum(&encode_echo(&ECHO)), 0);
    }

    proptest! {
        #[test]
        fn no_bytes_of_strangers_panic(packet in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = (parse_redirect(&packet, &ECHO), is_reply(&packet, &ECHO));
        }
    }
}
