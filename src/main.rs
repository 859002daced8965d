//! The `fairgate` command.

fn main() -> anyhow::Result<()> {
    Ok(())
}
