//! A process of this machine in the part of a container's.

use std::process::Stdio;

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::Command,
    sync::mpsc,
};

/// What it says.
pub(crate) enum Output {
    /// 1 is standard output, 2 standard error.
    Data(u8, Vec<u8>),
    /// The `Status` that ends it, as JSON.
    Exit(String),
}

/// Killed when its output is no longer wanted.
pub(crate) struct Process {
    /// Standard input; closed by a drop.
    pub(crate) input: mpsc::Sender<Vec<u8>>,
    pub(crate) output: mpsc::Receiver<Output>,
}

impl Process {
    pub(crate) fn start(command: &[String]) -> Self {
        let mut child = Command::new(&command[0])
            .args(&command[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (input, mut from_client) = mpsc::channel::<Vec<u8>>(4);
        let (to_client, output) = mpsc::channel(4);
        let mut stdin = child.stdin.take().unwrap();
        tokio::spawn(async move {
            while let Some(bytes) = from_client.recv().await {
                if stdin.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        });
        let out = pass(child.stdout.take().unwrap(), 1, to_client.clone());
        let err = pass(child.stderr.take().unwrap(), 2, to_client.clone());
        tokio::spawn(async move {
            let all = async {
                tokio::join!(out, err);
                child.wait().await.unwrap().code().unwrap_or(-1)
            };
            tokio::select! {
                code = all => {
                    let _ = to_client.send(Output::Exit(status(code))).await;
                }
                () = to_client.closed() => {}
            }
        });
        Self { input, output }
    }
}

async fn pass(mut from: impl AsyncRead + Unpin, channel: u8, to: mpsc::Sender<Output>) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if to.send(Output::Data(channel, buffer[..read].to_vec())).await.is_err() {
            return;
        }
    }
}

/// As a kubelet reports an exit code (remotecommand, protocol v4 and later).
fn status(code: i32) -> String {
    match code {
        0 => r#"{"metadata":{},"status":"Success"}"#.to_owned(),
        _ => format!(
            r#"{{"metadata":{{}},"status":"Failure","message":"command terminated with exit code {code}","reason":"NonZeroExitCode","details":{{"causes":[{{"reason":"ExitCode","message":"{code}"}}]}}}}"#
        ),
    }
}
