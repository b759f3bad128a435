"""`cleanup`: disks that never surprise. The plugin is in `plugin`; see docs/cleanup.md."""
