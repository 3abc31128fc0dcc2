"""An editor that writes a parameter into the body at delivery."""
