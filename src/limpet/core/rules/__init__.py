"""The rules of sessions, frames and imports: commands to events, events to state. All pure."""
