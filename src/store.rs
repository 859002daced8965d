//! The store of the bundled API server: which one, and `fairgate store` for the file of the embedded one.

use std::{
    fs::{File, TryLockError},
    path::Path,
    sync::Arc,
};

use anyhow::Context;
use apiserver_storage::{
    Embedded, Etcd, Store,
    embedded::maintenance,
    etcd::{Credentials, Options, SetupError},
};
use tokio::runtime::Runtime;

use crate::{
    Failure,
    cli::{self, Engine, StoreCommand},
};

/// Key of etcd below which everything is kept unless told otherwise.
const PREFIX: &str = "/fairgate";

/// Refuses options of etcd for a server that would not use it.
///
/// # Errors
/// Names the first of them.
pub(crate) fn check_options(args: &cli::StoreOptions) -> Result<(), Failure> {
    let given = [
        ("--etcd-servers", !args.etcd_servers.is_empty()),
        ("--etcd-prefix", args.etcd_prefix.is_some()),
        ("--etcd-cacert", args.etcd_cacert.is_some()),
        ("--etcd-cert", args.etcd_cert.is_some()),
        ("--etcd-key", args.etcd_key.is_some()),
        ("--etcd-credentials", args.etcd_credentials.is_some()),
    ];
    match given.into_iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) if args.store == Engine::Embedded => Err(Failure::Usage(anyhow::anyhow!(
            "{option} is for a server that keeps its objects in etcd: add --store etcd, or leave it out"
        ))),
        _ => Ok(()),
    }
}

/// Opens the store that the command line names; `first`: nothing in the data directory tells of a store.
pub(crate) fn open(
    runtime: &Runtime,
    args: &cli::StoreOptions,
    data_dir: &Path,
    first: bool,
) -> Result<Arc<dyn Store>, Failure> {
    match args.store {
        Engine::Embedded => {
            let path = file(data_dir);
            let is_lost = !first && is_empty(&path);
            // The error names the path.
            let store = Embedded::open(&path)?;
            if is_lost {
                let path = path.display();
                tracing::warn!(%path, "there is no store where there was one before, or one in etcd: this one begins empty");
            }
            Ok(Arc::new(store))
        }
        Engine::Etcd => {
            let options = etcd(args)?;
            let path = file(data_dir);
            if !is_empty(&path) {
                let path = path.display();
                tracing::warn!(%path, "there is an embedded store, which is not served: its objects are not in etcd");
            }
            match runtime.block_on(Etcd::connect(&options)) {
                Ok(store) => Ok(Arc::new(store)),
                Err(error @ SetupError::Store { .. }) => Err(error.into()),
                Err(error) => Err(Failure::Usage(error.into())),
            }
        }
    }
}

/// Keeps every other server out of a data directory, whatever its store, for as long as it is held. A server with an
/// embedded store holds this lock anyway.
///
/// # Errors
/// Another one is there, or the file cannot be made.
pub(crate) fn lock(data_dir: &Path) -> anyhow::Result<File> {
    let path = data_dir.join("store.db.lock");
    let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
    let file = file.with_context(|| format!("cannot use {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => anyhow::bail!(
            "{} is in use by another process; stop that one, or give each server a directory of its own",
            data_dir.display()
        ),
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("cannot use {}", path.display())),
    }
}

/// Whether nothing is kept there.
fn is_empty(path: &Path) -> bool {
    path.metadata().map_or(0, |m| m.len()) == 0
}

fn file(data_dir: &Path) -> std::path::PathBuf {
    data_dir.join("store.db")
}

fn etcd(args: &cli::StoreOptions) -> Result<Options, Failure> {
    Ok(Options {
        servers: args.etcd_servers.clone(),
        prefix: args.etcd_prefix.clone().unwrap_or_else(|| PREFIX.into()),
        ca_file: args.etcd_cacert.clone(),
        identity: args.etcd_cert.clone().zip(args.etcd_key.clone()),
        credentials: credentials(args.etcd_credentials.as_deref())?,
    })
}

/// `USER:PASSWORD` from a file or from the environment: what stands on a command line is seen by everybody.
fn credentials(file: Option<&Path>) -> Result<Option<Credentials>, Failure> {
    const VARIABLE: &str = "FAIRGATE_ETCD_CREDENTIALS";
    let (text, place) = match (file, std::env::var(VARIABLE)) {
        (Some(path), _) => {
            let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
            (text.map_err(Failure::Usage)?, path.display().to_string())
        }
        (None, Ok(text)) => (text, VARIABLE.to_owned()),
        (None, Err(_)) => return Ok(None),
    };
    match text.trim_end_matches(['\r', '\n']).split_once(':') {
        Some((user, password)) if !user.is_empty() => {
            Ok(Some(Credentials { user: user.into(), password: password.into() }))
        }
        _ => Err(Failure::Usage(anyhow::anyhow!("{place} holds no credentials; it is one line, USER:PASSWORD"))),
    }
}

/// `fairgate store`.
pub(crate) fn store(command: &StoreCommand) -> Result<(), Failure> {
    let (StoreCommand::Check(place) | StoreCommand::Compact(place) | StoreCommand::Backup { place, .. }) = command
    else {
        return run(command);
    };
    let path = file(&place.data_dir);
    if path.try_exists().is_ok_and(|is_there| !is_there) {
        return Err(missing(&path, &place.data_dir).into());
    }
    run(command)
}

/// There is no file where a store should be.
fn missing(path: &Path, data_dir: &Path) -> anyhow::Error {
    let etcd = if data_dir.join("admin.kubeconfig").exists() {
        "; a server with --store etcd keeps nothing there, and its etcd is looked after with the tools of etcd"
    } else {
        ""
    };
    anyhow::anyhow!(
        "no store is in {}: {} is not there; want with --data-dir the directory of a server with an embedded store{etcd}",
        data_dir.display(),
        path.display(),
    )
}

fn run(command: &StoreCommand) -> Result<(), Failure> {
    match command {
        StoreCommand::Check(place) => check(&file(&place.data_dir)),
        StoreCommand::Compact(place) => {
            let (before, after) = maintenance::compact(&file(&place.data_dir))?;
            say!("compacted: {} before, {} now", size(before), size(after));
            Ok(())
        }
        StoreCommand::Backup { place, file: to } => {
            let revision = maintenance::backup(&file(&place.data_dir), to)?;
            say!("{} holds the store as it was at revision {revision}", to.display());
            Ok(())
        }
        StoreCommand::Restore { place, file: from } => {
            let revision = maintenance::restore(from, &file(&place.data_dir))?;
            say!("restored; revisions go on after {revision}, so that clients read everything anew");
            Ok(())
        }
    }
}

fn check(path: &Path) -> Result<(), Failure> {
    let report = maintenance::check(path)?;
    say!(
        "{}: revision {}, readable from {}; {} objects of {}, {} old versions; the file has {}",
        path.display(),
        report.revision,
        report.compacted.max(1),
        report.objects,
        size(report.object_bytes),
        report.old_versions,
        size(report.file_bytes),
    );
    report.findings.iter().for_each(|finding| say!("{finding}"));
    let count = report.findings.len() as u64 + report.more_findings;
    if count == 0 {
        say!("nothing is wrong");
        return Ok(());
    }
    Err(anyhow::anyhow!("{count} findings; restore the store from a backup, or move it away to start empty").into())
}

fn size(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
