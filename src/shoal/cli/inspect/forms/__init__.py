"""The forms in which what is allocated is shown: tables, a document for programs, lines that say why."""
