-- Two aircraft of Alpine Air and Breeze fly for Dune Lines from half past seven on.
UPDATE aircraft SET carrier = 'DU', changed_at = '2024-03-02 07:30:00' WHERE registration IN ('X101', 'X102');
UPDATE aircraft SET seats = 96, changed_at = '2024-03-02 05:00:00' WHERE registration = 'X104';
UPDATE carriers SET name = 'Alpine Airways', changed_at = '2024-03-02 06:00:00' WHERE code = 'AL';
UPDATE carriers SET is_closed = true, changed_at = '2024-03-02 06:00:00' WHERE code = 'FJ';
