"""From teachers' answers to preference pairs: votes, a judge, disagreements."""
