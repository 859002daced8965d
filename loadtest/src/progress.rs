//! Shows how far the run is: a bar on a terminal, a line per phase elsewhere.

use std::{io::IsTerminal, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};

/// Counts milliseconds of the planned time.
pub(crate) struct Progress(Option<ProgressBar>);

impl Progress {
    pub(crate) fn new(total: Duration) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let bar = ProgressBar::new(total.as_millis() as u64);
        let style = ProgressStyle::with_template("{bar:32} {percent:>3} %  {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self(Some(bar))
    }

    /// What is going on now.
    pub(crate) fn step(&self, what: &str) {
        match &self.0 {
            Some(bar) => bar.set_message(what.to_owned()),
            None => eprintln!("{what}"),
        }
    }

    /// Moves the bar while `work` goes on, by at most `planned` in all.
    pub(crate) async fn during<T>(&self, planned: Duration, work: impl Future<Output = T>) -> T {
        let Some(bar) = &self.0 else { return work.await };
        let begin = bar.position();
        let started = std::time::Instant::now();
        let mut ticks = tokio::time::interval(Duration::from_millis(200));
        let mut work = std::pin::pin!(work);
        let done = loop {
            tokio::select! {
                done = &mut work => break done,
                _ = ticks.tick() => bar.set_position(begin + started.elapsed().min(planned).as_millis() as u64),
            }
        };
        bar.set_position(begin + planned.as_millis() as u64);
        done
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
