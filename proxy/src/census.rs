//! Open client connections: how many there are, and how many of each address.
//!
//! Asked once for each connection, by the acceptor; a connection gives its place back when it is dropped. Clients never
//! get all the files that the process may open: requests need connections to shards, and operators the admin address.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{Limits, refused::Why};

/// A std mutex: short sections, one for each end of a connection's life.
#[derive(Debug)]
pub(crate) struct Census {
    open: Mutex<Open>,
    /// Connections that there may be, whatever the limit says.
    files: usize,
}

/// Of the files that may be open, what is not for client connections: a quarter, and this at least.
const FILES_KEPT: usize = 64;

#[derive(Debug, Default)]
struct Open {
    total: usize,
    /// No entry is zero, so there are never more of them than connections.
    of: HashMap<IpAddr, usize>,
}

/// An open connection's place.
#[derive(Debug)]
pub(crate) struct Place {
    census: Arc<Census>,
    key: IpAddr,
}

impl Census {
    /// `files` may be open in this process; `None` is any number.
    pub(crate) fn new(files: Option<usize>) -> Self {
        let files = files.map_or(usize::MAX, |files| files.saturating_sub(FILES_KEPT.max(files / 4)).max(1));
        Self { open: Mutex::default(), files }
    }

    /// The limit of connections, unless the process may not open as many files.
    pub(crate) fn most(&self, limits: &Limits) -> usize {
        limits.connections.min(self.files)
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a connection from `address` in.
    ///
    /// # Errors
    /// Which limit says no.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr, limits: &Limits) -> Result<Place, Why> {
        let key = key(address);
        let mut open = self.lock();
        if open.total >= self.most(limits) {
            return Err(Why::Connections);
        }
        let of = open.of.entry(key).or_insert(0);
        if *of >= limits.connections_per_address {
            return Err(Why::Address);
        }
        *of += 1;
        open.total += 1;
        Ok(Place { census: self.clone(), key })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.census.lock();
        open.total -= 1;
        if let Entry::Occupied(mut of) = open.of.entry(self.key) {
            *of.get_mut() -= 1;
            if *of.get() == 0 {
                of.remove();
            }
        }
    }
}

/// Whoever has one IPv6 address has the whole network of 64 bits around it (RFC 4291 section 2.5.4).
fn key(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_and_given_back() {
        let limits = Limits { connections: 3, connections_per_address: 2, ..Limits::default() };
        let census = Arc::new(Census::new(None));
        let enter = |address: &str| census.enter(address.parse().unwrap(), &limits);
        let (a, b) = (enter("10.0.0.1").unwrap(), enter("::ffff:10.0.0.1").unwrap());
        assert_eq!(enter("10.0.0.1").err(), Some(Why::Address));
        let c = enter("2001:db8::1").unwrap();
        assert_eq!(enter("10.0.0.2").err(), Some(Why::Connections));
        drop(a);
        let d = enter("2001:db8::ffff:2").unwrap();
        drop(b);
        assert_eq!(enter("2001:db8:0:0:9::").err(), Some(Why::Address), "the same network");
        assert!(enter("2001:db8:0:1::").is_ok());
        drop((c, d));
        let open = census.lock();
        assert_eq!((open.total, open.of.len()), (0, 0));
    }

    #[test]
    fn clients_never_get_all_files() {
        let limits = Limits { connections: 1000, ..Limits::default() };
        for (files, want) in [(None, 1000), (Some(10_000), 1000), (Some(1024), 768), (Some(100), 36), (Some(10), 1)] {
            assert_eq!(Census::new(files).most(&limits), want, "{files:?} files");
        }
    }
}
