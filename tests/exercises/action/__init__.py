"""An action that lets mail go first."""
