"""An app for the tests with real processes: functions, and tables that show what they did."""
