"""How results look in a terminal: tables, diagrams, progress bars."""
