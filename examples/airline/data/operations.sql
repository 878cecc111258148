CREATE TABLE carriers
  (code text PRIMARY KEY, name text, is_closed boolean, changed_at timestamp);
CREATE TABLE aircraft
  (registration text PRIMARY KEY, carrier text, model text, seats int, changed_at timestamp);

INSERT INTO carriers VALUES
  ('AL', 'Alpine Air', false, '2024-01-01 00:00:00'),
  ('BR', 'Breeze', false, '2024-01-01 00:00:00'),
  ('CO', 'Coastal', false, '2024-01-01 00:00:00'),
  ('DU', 'Dune Lines', false, '2024-01-01 00:00:00'),
  ('FJ', 'Fjord Air', false, '2024-01-01 00:00:00');

INSERT INTO aircraft VALUES
  ('X101', 'AL', 'A320', 180, '2024-01-02 12:00:00'),
  ('X102', 'BR', 'A320', 180, '2024-01-03 12:00:00'),
  ('X103', 'CO', 'A320', 180, '2024-01-04 12:00:00'),
  ('X104', 'AL', 'E190', 100, '2024-01-05 12:00:00'),
  ('X105', 'BR', 'A320', 180, '2024-01-06 12:00:00'),
  ('X106', 'CO', 'AT76', 70, '2024-01-07 12:00:00'),
  ('X107', 'AL', 'AT76', 70, '2024-01-08 12:00:00'),
  ('X108', 'BR', 'E190', 100, '2024-01-09 12:00:00'),
  ('X109', 'CO', 'E190', 100, '2024-01-10 12:00:00'),
  ('X110', 'AL', 'AT76', 70, '2024-01-11 12:00:00'),
  ('X111', 'BR', 'A320', 180, '2024-01-12 12:00:00'),
  ('X112', 'CO', 'AT76', 70, '2024-01-13 12:00:00'),
  ('X113', 'AL', 'A320', 180, '2024-01-14 12:00:00'),
  ('X114', 'BR', 'AT76', 70, '2024-01-15 12:00:00'),
  ('X115', 'CO', 'AT76', 70, '2024-01-16 12:00:00'),
  ('X116', 'AL', 'A320', 180, '2024-01-17 12:00:00');
