//! Kubernetes' libraries of IP addresses and CIDRs.

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;

use super::{Function, no_such_overload};
use crate::{error::EvalError, evaluate::Context, value::Value};

pub(crate) const FUNCTIONS: &[Function] = &[
    Function { name: "ip", signatures: &["(string) -> net.IP", "net.CIDR.() -> net.IP"], call: ip },
    Function {
        name: "isIP",
        signatures: &["(string) -> bool"],
        call: |context, args| test_text(context, args, |text| parse_ip(text).is_ok()),
    },
    Function {
        name: "ip.isCanonical",
        signatures: &["(string) -> bool"],
        call: |context, args| {
            let text = parse_text(context, args)?;
            Ok(Value::Bool(parse_ip(text)?.to_string() == text))
        },
    },
    Function {
        name: "family",
        signatures: &["net.IP.() -> int"],
        call: |_, args| match args {
            [Value::Ip(ip)] => Ok(Value::Int(if ip.is_ipv4() { 4 } else { 6 })),
            _ => no_such_overload(),
        },
    },
    Function { name: "isUnspecified", signatures: TEST, call: |_, args| test(args, IpAddr::is_unspecified) },
    Function { name: "isLoopback", signatures: TEST, call: |_, args| test(args, IpAddr::is_loopback) },
    Function { name: "isLinkLocalMulticast", signatures: TEST, call: |_, args| test(args, is_link_local_multicast) },
    Function { name: "isLinkLocalUnicast", signatures: TEST, call: |_, args| test(args, is_link_local_unicast) },
    Function { name: "isGlobalUnicast", signatures: TEST, call: |_, args| test(args, is_global_unicast) },
    Function { name: "cidr", signatures: &["(string) -> net.CIDR"], call: cidr },
    Function {
        name: "isCIDR",
        signatures: &["(string) -> bool"],
        call: |context, args| test_text(context, args, |text| parse_cidr(text).is_ok()),
    },
    Function {
        name: "containsIP",
        signatures: &["net.CIDR.(net.IP) -> bool", "net.CIDR.(string) -> bool"],
        call: contains_ip,
    },
    Function {
        name: "containsCIDR",
        signatures: &["net.CIDR.(net.CIDR) -> bool", "net.CIDR.(string) -> bool"],
        call: contains_cidr,
    },
    Function {
        name: "prefixLength",
        signatures: &["net.CIDR.() -> int"],
        call: |_, args| match args {
            [Value::Cidr(cidr)] => Ok(Value::Int(cidr.prefix_len().into())),
            _ => no_such_overload(),
        },
    },
    Function {
        name: "masked",
        signatures: &["net.CIDR.() -> net.CIDR"],
        call: |_, args| match args {
            [Value::Cidr(cidr)] => Ok(Value::Cidr(Arc::new(cidr.trunc()))),
            _ => no_such_overload(),
        },
    },
];

const TEST: &[&str] = &["net.IP.() -> bool"];

/// IPv4 addresses in the form of IPv6 are refused, as upstream refuses them.
fn parse_ip(text: &str) -> Result<IpAddr, EvalError> {
    match text.parse() {
        Ok(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_some() => Err(EvalError::message(format_args!(
            "IP Address \"{text}\" parse error during conversion from string: IPv4-mapped IPv6 address is not allowed"
        ))),
        Ok(ip) => Ok(ip),
        Err(_) => Err(EvalError::message(format_args!(
            "IP Address \"{text}\" parse error during conversion from string: unable to parse IP"
        ))),
    }
}

fn parse_cidr(text: &str) -> Result<IpNet, EvalError> {
    let refused = |why: &str| {
        EvalError::message(format_args!("network address parse error during conversion from string: \"{text}\": {why}"))
    };
    let cidr: IpNet = text.parse().map_err(|_| refused("invalid CIDR address"))?;
    parse_ip(&cidr.addr().to_string()).map_err(|_| refused("IPv4-mapped IPv6 address is not allowed"))?;
    // `10.0.0.0/08` is no canonical length.
    match text.rsplit_once('/') {
        Some((_, length)) if length == cidr.prefix_len().to_string() => Ok(cidr),
        _ => Err(refused("invalid prefix length")),
    }
}

fn parse_text<'v>(context: &mut Context<'_, '_>, args: &'v [Value<'_>]) -> Result<&'v str, EvalError> {
    let [Value::String(text)] = args else { return Err(EvalError::NoSuchOverload) };
    context.meter.charge_traversal(2 * text.len())?;
    Ok(text)
}

fn test_text<'a>(
    context: &mut Context<'_, 'a>,
    args: &[Value<'a>],
    test: fn(&str) -> bool,
) -> Result<Value<'a>, EvalError> {
    Ok(Value::Bool(test(parse_text(context, args)?)))
}

fn ip<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let ip = match args {
        [Value::Cidr(cidr)] => cidr.addr(),
        _ => parse_ip(parse_text(context, args)?)?,
    };
    Ok(Value::Ip(Arc::new(ip)))
}

fn cidr<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    Ok(Value::Cidr(Arc::new(parse_cidr(parse_text(context, args)?)?)))
}

fn test<'a>(args: &[Value<'a>], test: fn(&IpAddr) -> bool) -> Result<Value<'a>, EvalError> {
    let [Value::Ip(ip)] = args else { return no_such_overload() };
    Ok(Value::Bool(test(ip)))
}

fn is_link_local_unicast(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 == 0xfe80,
    }
}

fn is_link_local_multicast(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.octets()[..3] == [224, 0, 0],
        IpAddr::V6(ip) => ip.segments()[0] & 0xff0f == 0xff02,
    }
}

fn is_global_unicast(ip: &IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !broadcast && !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast() && !is_link_local_unicast(ip)
}

fn contains_ip<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let [Value::Cidr(cidr), other] = args else { return no_such_overload() };
    let ip = match other {
        Value::Ip(ip) => **ip,
        other => parse_ip(parse_text(context, std::slice::from_ref(other))?)?,
    };
    Ok(Value::Bool(cidr.contains(&ip)))
}

fn contains_cidr<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let [Value::Cidr(cidr), other] = args else { return no_such_overload() };
    let inner = match other {
        Value::Cidr(inner) => **inner,
        other => parse_cidr(parse_text(context, std::slice::from_ref(other))?)?,
    };
    Ok(Value::Bool(cidr.contains(&inner)))
}
