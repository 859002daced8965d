//! Other settings are put in force while requests are served.
//!
//! What may fail comes first; then all of it counts, or nothing.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use crate::{
    ApplyError, Limits, RemoteOptions, Settings, ShardOptions, StartError, Upstream,
    access_log::{AccessLog, Output, Writer},
    core::{Access, Core, with_protocols},
    shards::{Comparison, Entry, Moves},
};

/// Shards that are made, and that nobody knows of yet.
struct Prepared<'a> {
    /// Those that stay, by number.
    stay: Vec<(usize, &'a ShardOptions)>,
    /// With the number of the one in whose place each comes.
    new: Vec<(Entry, Option<usize>)>,
    gone: Vec<usize>,
    /// All of them, as they are to stand.
    wanted: &'a [ShardOptions],
}

/// What is left to do for those who own threads and tasks.
#[derive(Default)]
pub(crate) struct Applied {
    pub(crate) moves: Moves,
    /// Of an access log that there was none of before.
    pub(crate) writer: Option<Writer>,
}

impl Core {
    /// Puts other settings in force: for new connections (TLS), for new requests (everything else).
    ///
    /// # Errors
    /// What of it cannot be. Nothing has changed then.
    pub(crate) fn apply(&self, settings: &Settings) -> Result<Applied, ApplyError> {
        let _one_at_a_time = self.shards.changing();
        let shards = settings.shards.as_deref().map(|wanted| self.prepare(wanted, &settings.limits)).transpose()?;
        let opened = self.open_log(settings.access_log.as_ref()).map_err(ApplyError::AccessLog)?;
        // The last of what may fail: they are in force at once.
        if !self.limits.replace(settings.limits) {
            return Err(ApplyError::TooManyLimits);
        }
        self.tls.store(settings.tls.as_deref().map(with_protocols));
        self.access.store(Arc::new(Access::new(settings.anonymous, &settings.drop_groups)));
        let moves = shards.map(|prepared| self.put(prepared)).unwrap_or_default();
        let writer = self.log(settings.access_log.as_ref(), opened);
        Ok(Applied { moves, writer })
    }

    /// Makes what is to come.
    fn prepare<'a>(&self, wanted: &'a [ShardOptions], limits: &Limits) -> Result<Prepared<'a>, ApplyError> {
        if wanted.is_empty() {
            return Err(StartError::NoShard.into());
        }
        let Comparison { stay, new, gone } = self.shards.compare(wanted);
        if self.index.is_static() && (!gone.is_empty() || new.iter().any(|(_, old)| old.is_none())) {
            return Err(ApplyError::Static);
        }
        if !self.shards.have_room(new.len()) {
            return Err(ApplyError::TooManyShards);
        }
        let make = |(options, old): (&ShardOptions, _)| {
            let gate = self.fairness.as_ref().map(|f| f.gate(options.seats, &self.clock, &self.index));
            Ok((Entry::new(options, gate, limits, self.workers)?, old))
        };
        let new = new.into_iter().map(make).collect::<Result<_, StartError>>()?;
        Ok(Prepared { stay, new, gone, wanted })
    }

    fn put(&self, Prepared { stay, new, gone, wanted }: Prepared<'_>) -> Moves {
        let old: Vec<_> = self.shards.all().map(|(_, entry)| entry.seats.load(Relaxed)).collect();
        let mut seats = old.clone();
        for (number, options) in &stay {
            if let Some(seats) = seats.get_mut(*number) {
                *seats = options.seats;
            }
        }
        seats.extend(new.iter().map(|(entry, _)| entry.seats.load(Relaxed)));
        // Prices first: no request should be wider than its shard for longer than needed, nor find a shard without.
        if let Some(fairness) = self.fairness.as_ref().filter(|_| old != seats) {
            fairness.set_seats(seats.into());
        }
        stay.into_iter().for_each(|(number, options)| self.adjust(number, options));
        let mut moves = Moves { came: Vec::new(), went: gone.into_iter().map(|number| (number, None)).collect() };
        for (entry, old) in new {
            let number = self.index.add_shard();
            let same = self.shards.add(entry);
            debug_assert_eq!(number, same, "both count all shards there ever were");
            moves.came.push(number);
            moves.went.extend(old.map(|old| (old, Some(number))));
        }
        for (number, _) in &moves.went {
            self.shards.leave(*number);
            self.index.leave(*number);
        }
        if let (true, Some(only)) = (self.index.is_static(), moves.came.last()) {
            self.become_static(*only);
        }
        let ranks: HashMap<&str, usize> = wanted.iter().zip(0..).map(|(options, n)| (&*options.name, n)).collect();
        self.shards.choose_platform(|name| ranks.get(name).copied().unwrap_or(usize::MAX));
        moves
    }

    /// Brings a shard that stays up to date.
    fn adjust(&self, number: usize, options: &ShardOptions) {
        let Some(entry) = self.shards.get(number) else { return };
        if entry.seats.swap(options.seats, Relaxed) != options.seats
            && let Some(gate) = &entry.gate
        {
            gate.set_seats(options.seats);
        }
        if let Upstream::Remote(RemoteOptions { tls: Some(tls), .. }) = &options.upstream {
            entry.shard.renew_tls(tls);
        }
    }

    /// Opens what an access log of these settings needs.
    fn open_log(&self, settings: Option<&config::AccessLog>) -> io::Result<Opened> {
        Ok(match (settings, self.access_log.get()) {
            (None, _) => Opened::Nothing,
            (Some(settings), Some(log)) => Opened::Output(log.open(settings)?),
            (Some(settings), None) => {
                let (log, writer) = Writer::start(settings, Output::open(&settings.sink)?, self.clock.clone())?;
                Opened::Log(log, writer)
            }
        })
    }

    /// Logs requests as `settings` say.
    fn log(&self, settings: Option<&config::AccessLog>, opened: Opened) -> Option<Writer> {
        match (opened, self.access_log.get()) {
            (Opened::Log(log, writer), None) => {
                // There is none, and settings are put in force one after the other.
                let _ = self.access_log.set(log);
                return Some(writer);
            }
            (Opened::Output(output), Some(log)) => log.set(settings, output),
            (_, Some(log)) => log.set(None, None),
            (_, None) => {}
        }
        None
    }
}

/// See [`Core::open_log`].
enum Opened {
    /// There is to be no log.
    Nothing,
    /// For the log there is, if its lines are to go elsewhere.
    Output(Option<Output>),
    Log(AccessLog, Writer),
}
